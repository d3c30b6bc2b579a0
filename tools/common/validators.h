// Validators of option values for CLI11. Their error messages are those of messages.h.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tools/common/messages.h"

namespace tutti::tool {

// Accepts numbers from `least` to `most`, both included. The help text shows the range in the form of CLI::Range().
template <class Number>
CLI::Validator number_in(Number least, Number most) {
  CLI::Validator validator = CLI::Range(least, most);
  validator.operation([=](std::string& text) {
    Number value{};
    const bool good = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
    return good ? std::string() : not_a_number(text, static_cast<double>(least), static_cast<double>(most));
  });
  return validator;
}

// Accepts numbers that are at least `least`. There is no upper limit, but CLI11 checks later whether the number fits
// in the type of the option.
inline CLI::Validator number_from(double least) {
  return {[=](std::string& text) {
            double value = 0;
            return CLI::detail::lexical_cast(text, value) && value >= least ? std::string()
                                                                            : not_a_number(text, least, std::nullopt);
          },
          ""};
}

// Accepts one of the names. The help text lists them.
inline CLI::Validator name_in(const std::vector<std::string>& names) {
  CLI::Validator validator = CLI::IsMember(names);
  validator.operation([known = names](std::string& word) {
    const std::vector<std::string_view> views(known.begin(), known.end());
    return std::find(known.begin(), known.end(), word) != known.end() ? std::string() : not_one_of(word, views);
  });
  return validator;
}

// Returns the message for an error that CLI11 has detected, in the form that messages.h describes if possible.
inline std::string describe_parse_error(const CLI::ParseError& error) {
  constexpr std::string_view kConversion = "Could not convert: ";  // followed by "--ranks = x"
  const std::string text = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) return "unknown option" + text.substr(text.rfind(' '));
  const std::size_t equals = text.find(" = ");
  const bool converts = dynamic_cast<const CLI::ConversionError*>(&error) != nullptr && text.starts_with(kConversion);
  if (!converts || equals == std::string::npos) return text;
  return text.substr(kConversion.size(), equals - kConversion.size()) + ": " + not_a_number(text.substr(equals + 3));
}

}  // namespace tutti::tool
