#include "base/system_error.h"

#include <cerrno>
#include <system_error>

namespace tutti {
namespace {

// Returns the remedy for the errno value `error`, as the end of a message, or an empty text if no remedy is known.
const char* remedy(int error) {
  switch (error) {
    case EMFILE: return "; raise the limit of open files (ulimit -n)";
    case ENFILE: return "; raise the machine's limit of open files (sysctl fs.file-max)";
    case ENOBUFS:
    case ENOMEM: return "; raise the limits of memory (ulimit -v, the cgroup's memory.max), or let it use less";
    default: return "";
  }
}

}  // namespace

std::string describe_errno(int error) { return std::generic_category().message(error) + remedy(error); }

std::string describe_thread_errno(int error) {
  if (error != EAGAIN) return describe_errno(error);
  return std::generic_category().message(error) +
         "; raise the limit of processes (ulimit -u, the cgroup's pids.max) or of memory";
}

std::string describe_thread_start_error(const std::system_error& error) {
  return "no thread can be started: " + describe_thread_errno(error.code().value());
}

bool is_shortage(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

}  // namespace tutti
