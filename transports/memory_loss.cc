#include "transports/memory_loss.h"

#include <fmt/format.h>
#include <sys/resource.h>

namespace tutti {

MemoryLoss lost_descriptor(bool one_is_free) {
  if (one_is_free) {
    return {.lacked = CallArgument::kPermission,
            .why =
                "the system forbids to pass file descriptors between these two processes: a security module "
                "(SELinux, AppArmor) or a sandbox keeps them apart; run both under one profile, or set "
                "TUTTI_TRANSPORT=tcp"};
  }
  rlimit files{};
  const bool known = getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY;
  return {.lacked = CallArgument::kDescriptors,
          .why = fmt::format("no file descriptor was free to receive it; raise the limit of open files (ulimit -n{})",
                             known ? fmt::format(", now {}", files.rlim_cur) : "")};
}

MemoryLoss lost_mapping(const Error& error) {
  const bool by_system = error.code == ErrorCode::kSystem;
  return {.lacked = by_system ? CallArgument::kMappings : CallArgument::kNone, .why = error.message};
}

Error error_of(const MemoryLoss& loss, ErrorScope scope, std::uint32_t peer, std::uint32_t self) {
  const bool by_peer = loss.lacked == CallArgument::kNone;
  return {by_peer ? ErrorCode::kRefused : ErrorCode::kSystem, scope, static_cast<std::int32_t>(by_peer ? peer : self),
          fmt::format("this rank ({}) has no view of memory that rank {} shares with it: {}", self, peer, loss.why)};
}

}  // namespace tutti
