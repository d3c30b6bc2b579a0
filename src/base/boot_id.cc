#include "base/boot_id.h"

#include <sys/utsname.h>

#include <cerrno>
#include <fstream>

namespace tutti {

Result<std::string> boot_id() {
  std::string id;
  errno = 0;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  if (!file.is_open() && (errno == EMFILE || errno == ENFILE)) {
    return Error{ErrorCode::kSystem, ErrorScope::kCommunicator, -1,
                 "no descriptor is left to read /proc/sys/kernel/random/boot_id: raise the limit of open files "
                 "(ulimit -n)"};
  }
  if (std::getline(file, id) && !id.empty()) return id;
  utsname names{};
  return "unknown boot of " + std::string(uname(&names) == 0 ? names.nodename : "this host");
}

}  // namespace tutti
