#include "base/paths.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <memory>

namespace tutti {
std::string join_path(std::string_view folder, std::string_view name) {
  std::string path(folder);
  if (!path.empty() && !path.ends_with('/')) path += '/';
  return path += name;
}

std::string folder_of(const std::string& path) {
  std::size_t end = path.rfind('/');
  if (end == std::string::npos) return {};
  while (end > 1 && path[end - 1] == '/') --end;
  return path.substr(0, std::max<std::size_t>(end, 1));
}

std::string resolve_path(const std::string& path) {
  std::array<char, PATH_MAX> resolved{};
  return ::realpath(path.c_str(), resolved.data()) == nullptr ? std::string() : std::string(resolved.data());
}

FileType file_type(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return FileType::kNone;
  if (S_ISREG(status.st_mode)) return FileType::kRegular;
  return S_ISDIR(status.st_mode) ? FileType::kFolder : FileType::kOther;
}

bool file_exists(const std::string& path) { return file_type(path) != FileType::kNone; }

int create_folders(const std::string& folder) {
  if (folder.empty() || ::mkdir(folder.c_str(), 0777) == 0) return 0;
  const int error = errno;  // before stat(), which changes errno
  const FileType existing = file_type(folder);
  if (existing == FileType::kFolder) return 0;
  if (existing != FileType::kNone) return ENOTDIR;
  if (error != ENOENT) return error;
  const std::string above = folder_of(folder);
  if (above.empty() || above == folder) return error;
  if (const int above_error = create_folders(above); above_error != 0) return above_error;
  if (::mkdir(folder.c_str(), 0777) == 0) return 0;
  const int second_error = errno;
  // It can exist now: another process has created it, or `folder` is "a/", and "a" was created as the folder above.
  return file_type(folder) == FileType::kFolder ? 0 : second_error;
}

std::vector<std::string> names_in_folder(const std::string& folder, std::size_t most) {
  struct Close {
    void operator()(DIR* open) const { closedir(open); }
  };
  const std::unique_ptr<DIR, Close> open(opendir(folder.c_str()));
  std::vector<std::string> names;
  while (open != nullptr && names.size() < most) {
    const dirent* const entry = readdir(open.get());  // NOLINT(concurrency-mt-unsafe): this thread's own stream
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace tutti
