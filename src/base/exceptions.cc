#include "base/exceptions.h"

#include <fmt/format.h>

#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "base/system_error.h"

namespace tutti {
namespace {

static_assert(std::string_view(kOutOfMemory).size() <= 15);

Error described(ErrorScope scope, std::int32_t rank, std::string_view doing) {
  Error error{ErrorCode::kSystem, scope, rank, {}};
  try {
    throw;
  } catch (const std::bad_alloc&) {
    error.message = fmt::format(
        "{}: this process is out of memory: raise its limit (ulimit -v, the cgroup's "
        "memory.max) or let it use less",
        doing);
  } catch (const std::system_error& exception) {
    // std::thread throws this error code if a limit of processes or of memory is reached.
    const bool no_thread = exception.code() == std::errc::resource_unavailable_try_again;
    error.message =
        fmt::format("{}: {}", doing, no_thread ? describe_thread_errno(exception.code().value()) : exception.what());
  } catch (const std::exception& exception) {
    error.message = fmt::format("{}: {}", doing, exception.what());
  } catch (...) {
    error.message = fmt::format("{}: an exception of an unknown type", doing);
  }
  return error;
}

}  // namespace

Error error_of_exception(ErrorScope scope, std::int32_t rank, std::string_view doing) noexcept {
  try {
    return described(scope, rank, doing);
  } catch (...) {
    return {ErrorCode::kSystem, scope, rank, kOutOfMemory};
  }
}

Error copy_of(const Error& error) noexcept {
  try {
    return error;
  } catch (...) {
    return {error.code, error.scope, error.rank, kOutOfMemory};
  }
}

}  // namespace tutti
