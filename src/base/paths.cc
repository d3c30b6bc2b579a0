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
namespace {

// Returns the type of the file, in the form of stat()'s st_mode. Returns 0 if there is no file.
mode_t type_of(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_mode & S_IFMT : 0;
}

}  // namespace

std::string join_path(std::string_view folder, std::string_view name) {
  std::string path(folder);
  if (!path.ends_with('/')) path += '/';
  return path += name;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {};
  return path.substr(0, std::max<std::size_t>(slash, 1));
}

std::string resolve_path(const std::string& path) {
  std::array<char, PATH_MAX> resolved{};
  return ::realpath(path.c_str(), resolved.data()) == nullptr ? std::string() : std::string(resolved.data());
}

bool is_file(const std::string& path) { return type_of(path) != 0; }
bool is_folder(const std::string& path) { return type_of(path) == S_IFDIR; }
bool is_regular_file(const std::string& path) { return type_of(path) == S_IFREG; }

int create_folders(const std::string& folder) {
  if (folder.empty() || is_folder(folder)) return 0;
  if (is_file(folder)) return ENOTDIR;
  if (const int error = create_folders(folder_of(folder)); error != 0) return error;
  // Another process may have created it in the meantime.
  return ::mkdir(folder.c_str(), 0777) == 0 || is_folder(folder) ? 0 : errno;
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
