// Paths and folders, as strings. The library does not use std::filesystem: if an allocation fails, GCC's
// std::filesystem::path dereferences a null pointer when it is extended, and its directory_iterator aborts the process.
//
// All functions may be called by any thread, follow symbolic links, and throw std::bad_alloc.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

// Returns "folder/name". `folder` may end with a "/".
std::string join_path(std::string_view folder, std::string_view name);

// Returns the part before the last "/": "/a" for "/a/b", "/" for "/a". Returns an empty string if there is no "/".
std::string folder_of(const std::string& path);

// Returns the path without symbolic links, "." and "..". Returns an empty string if it names no file.
std::string resolve_path(const std::string& path);

bool is_file(const std::string& path);  // whether it names a file of any kind, which includes a folder
bool is_folder(const std::string& path);
bool is_regular_file(const std::string& path);

// Creates the folder and those above it that do not exist, with the permissions that the umask leaves. Returns 0, also
// if the folder exists already, or the errno of the first folder that cannot be created.
int create_folders(const std::string& folder);

// Returns the names in the folder except "." and "..", sorted. If there are more than `most`, returns only the first
// `most` names that the system lists. Returns an empty list if the folder cannot be read.
std::vector<std::string> names_in_folder(const std::string& folder, std::size_t most);

}  // namespace tutti
