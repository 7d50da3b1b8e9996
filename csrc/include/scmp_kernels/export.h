// Visibility of the public functions.
#pragma once

#if defined(__GNUC__)
#define SCMP_API __attribute__((visibility("default")))
#else
#define SCMP_API
#endif
