// Which instruction set the CPU kernels use: detected at run time, forceable for tests.
#pragma once

#include <string>
#include <vector>

namespace scmp {

enum class Isa { scalar, avx2, avx512 };  // avx512: F, BW, VL, DQ, VBMI, VPOPCNTDQ

/// "reference" is not an Isa but a kernel choice beside them: cycle by cycle, for every shape.
enum class CpuKernel { automatic, reference, scalar, avx2, avx512 };

/// Kernels that this build and this machine can run, by name ("reference" first, best last).
std::vector<std::string> available_cpu_kernels();

/// Forces a kernel by name, "auto" to undo; ValueError when the machine cannot run it.
void force_cpu_kernel(const std::string& name);
std::string forced_cpu_kernel();

CpuKernel current_cpu_kernel();  // never automatic
Isa current_isa();

}  // namespace scmp
