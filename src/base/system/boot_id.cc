#include "base/system/boot_id.h"

#include <sys/utsname.h>

#include <cerrno>
#include <fstream>

#include "base/system_error.h"

namespace tutti {

Result<BootId> boot_id() {
  std::string id;
  errno = 0;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  if (!file.is_open() && is_shortage(errno)) {
    return Error{ErrorCode::kSystem, ErrorScope::kCommunicator, -1,
                 "/proc/sys/kernel/random/boot_id cannot be read: " + describe_errno(errno)};
  }
  if (std::getline(file, id) && !id.empty()) return BootId{.name = id, .is_proof = true};
  utsname names{};
  const std::string host = uname(&names) == 0 ? names.nodename : "this host";
  return BootId{.name = "unknown boot of " + host, .is_proof = false};
}

}  // namespace tutti
