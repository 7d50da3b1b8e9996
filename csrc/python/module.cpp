// scmp_kernels._C: loads the operator library and exposes its controls. No tensor passes through.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "scmp_kernels/control.h"

namespace py = pybind11;

PYBIND11_MODULE(_C, m) {
  m.doc() = "Controls of the scmp operator library; importing it registers torch.ops.scmp.";
  m.def("clear_rng_cache", &scmp::clear_rng_cache, "Drop all cached RNG sequences and tables.");
  m.def("rng_cache_stats", &scmp::rng_cache_stats,
        "entries, bytes, limit, hits, misses and evictions of the RNG cache.");
  m.def("set_rng_cache_limit", &scmp::set_rng_cache_limit, py::arg("bytes"),
        "Bound the RNG cache to this many bytes.");
  m.def("library_info", &scmp::library_info, "What the operator library was built with.");
  m.def("cpu_kernels", &scmp::cpu_kernels, "CPU kernels that this machine can run.");
  m.def("set_cpu_kernel", &scmp::set_cpu_kernel, py::arg("name"),
        "Force one CPU kernel for every call, 'auto' to undo.");
  m.def("cpu_kernel", &scmp::cpu_kernel, "The forced CPU kernel, or 'auto'.");
  m.def("cuda_kernels", &scmp::cuda_kernels, "CUDA kernels of this build.");
  m.def("set_cuda_kernel", &scmp::set_cuda_kernel, py::arg("name"),
        "Force one CUDA kernel for every call, 'auto' to undo.");
  m.def("cuda_kernel", &scmp::cuda_kernel, "The forced CUDA kernel, or 'auto'.");
  m.def("register_config", &scmp::add_config, py::arg("digest"), py::arg("text"),
        "Keep a config usable under its digest.");
  m.def("unregister_config", &scmp::remove_config, py::arg("digest"), "Undo one register_config.");
  m.def("registered_configs", &scmp::config_count, "Number of registered configs.");
  m.def("config_sequence", &scmp::config_sequence, py::arg("json"), py::arg("operand"),
        py::arg("position"), py::arg("sc_prec"),
        "The values that a config drives one position of operand 'q' or 'k' with.");
  m.def("enter_det_tuning", &scmp::enter_det_tuning, "Enter this thread's tuning scope.");
  m.def("leave_det_tuning", &scmp::leave_det_tuning, "Leave this thread's tuning scope.");
}
