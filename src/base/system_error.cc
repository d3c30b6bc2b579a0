#include "base/system_error.h"

#include <cerrno>
#include <system_error>

namespace tutti {
namespace {

// What to do, or nothing.
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

std::string words_of_errno(int error) { return std::generic_category().message(error) + remedy(error); }

std::string words_of_thread_errno(int error) {
  if (error != EAGAIN) return words_of_errno(error);
  return std::generic_category().message(error) +
         "; raise the limit of processes (ulimit -u, the cgroup's pids.max) or of memory";
}

std::string words_of_unstarted_thread(const std::system_error& error) {
  return "no thread can be started: " + words_of_thread_errno(error.code().value());
}

bool is_shortage(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

}  // namespace tutti
