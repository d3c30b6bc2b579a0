// Lists the names in a folder. Used instead of std::filesystem::directory_iterator, which aborts the process if an
// allocation fails while it reads (GCC's standard library allocates in a function that is noexcept).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tutti {

// Returns the names in the folder except "." and "..", sorted. If there are more than `most`, returns only the first
// `most` names that the system lists. Returns an empty list if the folder cannot be read. Throws std::bad_alloc.
std::vector<std::string> names_in_folder(const std::string& folder, std::size_t most);

}  // namespace tutti
