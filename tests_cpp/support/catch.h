// Catch2 2.13 and 3 under one include.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <string>

/// Matches a message that holds both texts (Catch2 2 and 3 name their own matcher differently).
class Mentions : public Catch::Matchers::
#if __has_include(<catch2/catch_all.hpp>)
                     MatcherBase
#else
                     Impl::MatcherBase
#endif
                 <std::string> {
 public:
  Mentions(std::string first, std::string second)
      : first_(std::move(first)), second_(std::move(second)) {}
  bool match(const std::string& text) const override {
    return text.find(first_) != std::string::npos && text.find(second_) != std::string::npos;
  }
  std::string describe() const override { return "mentions " + first_ + " and " + second_; }

 private:
  std::string first_, second_;
};
