// Turns exceptions into errors. The code of this project returns its failures, but the standard library throws, most
// often std::bad_alloc. These functions are used at the places that an exception must not pass: in public functions, in
// the library's threads, and in code that has to complete a change of state in any case.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "tutti/result.h"

namespace tutti {

// The message that is used if there is no memory for a better one. It fits into the internal buffer of std::string, so
// creating it allocates no memory.
inline constexpr const char* kOutOfMemory = "out of memory";

// Call this in a catch block: returns a kSystem error for the current exception. `rank` is the rank that caused the
// failure, or -1. `doing` names the operation and begins the message. If there is no memory for the message, the
// message is only kOutOfMemory.
Error error_of_exception(ErrorScope scope, std::int32_t rank, std::string_view doing) noexcept;

// Returns a copy of `error`. If there is no memory for its message, the message of the copy is kOutOfMemory.
Error copy_of(const Error& error) noexcept;

// Returns an error with the message that `make` returns. If `make` throws, the message is kOutOfMemory.
template <class Make>
Error error_with(Make&& make, ErrorCode code, ErrorScope scope, std::int32_t rank) noexcept {
  try {
    return {code, scope, rank, std::forward<Make>(make)()};
  } catch (...) {
    return {code, scope, rank, kOutOfMemory};
  }
}

// Runs the body of a public function after whose failure communicators can still be used. (For the others there is
// CommunicatorImpl::guarded().) Returns the body's result, or an error with scope kCall if it throws.
template <class Body>
auto guarded(std::string_view function, Body&& body) noexcept -> decltype(body()) {
  try {
    return std::forward<Body>(body)();
  } catch (...) {
    return error_of_exception(ErrorScope::kCall, -1, function);
  }
}

// Runs `body`. Returns whether it ended without an exception.
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
