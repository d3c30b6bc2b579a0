#include "base/folder.h"

#include <dirent.h>

#include <algorithm>
#include <memory>
#include <string_view>

namespace tutti {

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
