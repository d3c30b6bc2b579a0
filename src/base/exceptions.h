// From exceptions to errors. Code of this project returns its failures, but the standard library throws, above all
// std::bad_alloc. These functions stand where no exception may pass: at the public functions, in the threads of the
// library, and where a state has to be completed whatever happens.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "tutti/result.h"

namespace tutti {

// The message where there is no memory for another. Short enough for the buffer inside of std::string, so that making
// it allocates nothing.
inline constexpr const char* kOutOfMemory = "out of memory";

// The error for the exception that is being handled: kSystem for exhausted memory and refused system calls. `rank` is
// the one to blame, `doing` what was being done, for the message. If there is no memory for the message either, it is
// "out of memory", which needs none.
Error error_of_exception(ErrorScope scope, std::int32_t rank, std::string_view doing) noexcept;

// A copy of `error`; with the message "out of memory" if there is no memory for a copy of it.
Error copy_of(const Error& error) noexcept;

// An error whose message is the text that `make` returns; "out of memory" if there is no memory for it.
template <class Make>
Error error_with(Make&& make, ErrorCode code, ErrorScope scope, std::int32_t rank) noexcept {
  try {
    return {code, scope, rank, std::forward<Make>(make)()};
  } catch (...) {
    return {code, scope, rank, kOutOfMemory};
  }
}

// Runs the body of a public function that concerns the calling rank only. An exception becomes its error.
template <class Body>
auto guarded(std::string_view function, Body&& body) noexcept -> decltype(body()) {
  try {
    return std::forward<Body>(body)();
  } catch (...) {
    return error_of_exception(ErrorScope::kCall, -1, function);
  }
}

// Whether `body` ran to its end without an exception.
template <class Body>
bool runs_through(Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace tutti
