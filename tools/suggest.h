// What a word that is not understood could have meant. Pure functions; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tutti::tool {

// What parse_size() takes, for messages.
inline constexpr std::string_view kSizeForms = "bytes like 8, 4K, 64M, 1G or 1GiB (powers of 1024, at most 1024G)";

// "did you mean ring? it has ring, two_shot", or only the list, where none is near.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> known, std::string_view list_begins);

}  // namespace tutti::tool
