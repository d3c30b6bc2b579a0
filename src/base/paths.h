// Paths and folders, as strings. The library does not use std::filesystem: if an allocation fails, GCC's
// std::filesystem::path dereferences a null pointer when it is extended, and its directory_iterator aborts the process.
//
// Any thread may call these functions. Those that look at files follow symbolic links. Those that return a string or a
// list throw std::bad_alloc if an allocation fails, and so does create_folders().
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

// Returns "folder/name". `folder` may end with a "/". If it is empty, returns `name`.
std::string join_path(std::string_view folder, std::string_view name);

// Returns the part before the last "/": "/a" for "/a/b" and "/a//b", "/" for "/a". Returns an empty string if there is
// no "/".
std::string folder_of(const std::string& path);

// Returns the absolute path without symbolic links, "." and "..". Returns an empty string if it names no file, or if it
// cannot be resolved, for example because a folder above may not be searched.
std::string resolve_path(const std::string& path);

enum class FileType : std::uint8_t { kNone, kRegular, kFolder, kOther };

// Returns kNone if there is no file, or if it cannot be examined, for example because a folder above may not be
// searched.
FileType file_type(const std::string& path);
bool file_exists(const std::string& path);  // a file of any type, also a folder

// Creates the folder and those above it that do not exist, with the permissions that the umask leaves. Returns 0, also
// if the folder exists already, or the errno of the first folder that cannot be created: ENOTDIR if the path names a
// file of another type, EEXIST if it is a symbolic link that leads nowhere. An empty path is the current folder.
int create_folders(const std::string& folder);

// Returns the names in the folder except "." and "..", sorted. If there are more than `most`, returns only the first
// `most` names that the system lists. Returns an empty list if the folder cannot be read.
std::vector<std::string> names_in_folder(const std::string& folder, std::size_t most);

}  // namespace tutti
