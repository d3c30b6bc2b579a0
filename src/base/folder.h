// The names in a folder. In place of std::filesystem::directory_iterator, which ends the process if an allocation fails
// while it reads (GCC's library allocates in a function that is noexcept).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tutti {

// At most `most` of them, sorted, without "." and "..". None if the folder cannot be read.
std::vector<std::string> names_in_folder(const std::string& folder, std::size_t most);

}  // namespace tutti
