// The one exception type of the torch-free core; the operators turn it into TORCH_CHECK_VALUE.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace scmp {

class ValueError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

/// A caller's text in an error message: short, on one line, in quotes.
inline std::string in_quotes(std::string_view value) {
  std::string text = "'";
  for (char c : value.substr(0, 60)) text += (c < ' ' || c > '~') ? '?' : c;
  return text + (value.size() > 60 ? "...'" : "'");
}

/// Throws ValueError with the parts joined into one line unless `condition` holds.
template <typename... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) throw ValueError(concat(parts...));
}

}  // namespace scmp
