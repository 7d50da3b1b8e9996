// Errors of the torch-free core as torch's ValueError.
#pragma once

#include <c10/util/Exception.h>

#include <utility>

#include "common/error.h"

namespace scmp {

/// Runs `body`; a scmp::ValueError becomes c10::ValueError with "<op>: " in front of its text.
template <typename Body>
auto with_value_errors(const char* op, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const ValueError& error) {
    TORCH_CHECK_VALUE(false, op, ": ", error.what());
  }
}

}  // namespace scmp
