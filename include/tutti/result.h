// Errors as values. Every call of Tutti that can fail for a reason outside the program returns a Status or a Result<T>;
// a broken invariant inside Tutti asserts instead. Nothing here throws. Values; safe to copy and to send between
// threads.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tutti/export.h"

namespace tutti {

// The largest thing that the error has cost. After kCall the communicator works on as before; after kConnection or
// kCommunicator every further call on the communicator fails with the same cause; kProcess means that nothing of Tutti
// can be used in this process.
enum class ErrorScope : std::uint8_t { kCall, kConnection, kCommunicator, kProcess };

enum class ErrorCode : std::uint8_t {
  kInvalidArgument,  // this rank passed something that cannot be right: null pointer, unknown type, overflow, rank
                     // outside
  kMismatch,         // ranks of one call disagree on its arguments; the culprit's rank is in Error::rank
  kInvalidPlan,      // the plan was refused by the verifier
  kUnsupported,      // right, but this build or machine cannot do it
  kConfig,           // an option or a TUTTI_* variable is unknown or has a bad value
  kTimeout,          // a deadline passed; the ranks that were missing are in the message
  kAborted,          // abort() was called here or on a peer
  kPeerLost,         // a peer's process ended
  kRefused,          // a peer is not who it should be: other job, other user, other protocol version
  kSystem,           // the operating system refused: out of memory, of descriptors, of disk, no permission
  kDevice,           // the CUDA driver refused, or a kernel failed; its context may be lost
  kDamaged,          // bits of a message changed on their way: its checksum is wrong (CommunicatorOptions::checksum)
};
inline constexpr ErrorCode kLastErrorCode = ErrorCode::kDamaged;  // none is beyond it

// One failure, told so that a person can act on it.
struct Error {
  ErrorCode code = ErrorCode::kSystem;
  ErrorScope scope = ErrorScope::kCall;
  std::int32_t rank = -1;  // the rank to blame, or -1 where no single one is
  std::string message;     // cause, rank, peer and operation as far as known, and what to do

  bool operator==(const Error&) const = default;
};

// "invalid argument: count is 3 but output is null" and the like: the code's name, a colon, the message.
TUTTI_API std::string to_string(const Error& error);
TUTTI_API std::string_view to_string(ErrorCode code);
TUTTI_API std::string_view to_string(ErrorScope scope);

namespace detail {
// Ends the process: value() was called on a failed result, or error() on a good one. Prints `what` and the error.
[[noreturn]] TUTTI_API void bad_result_access(const char* what, const Error* error);
}  // namespace detail

// Either a T or an Error. value() on an error, or error() on a value, is a bug and ends the process with a message.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}      // NOLINT(google-explicit-constructor): `return value;`
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor): `return error;`

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }

  T& value() & { return require_value(), *value_; }
  const T& value() const& { return require_value(), *value_; }
  T value() && { return require_value(), *std::move(value_); }  // by value: `for (x : *f())` must not dangle
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(*this).value(); }

  const Error& error() const& { return require_error(), error_; }
  Error error() && { return require_error(), std::move(error_); }

 private:
  void require_value() const {
    if (!value_) detail::bad_result_access("value() of a failed Result", &error_);
  }
  void require_error() const {
    if (value_) detail::bad_result_access("error() of a good Result", nullptr);
  }

  std::optional<T> value_;
  Error error_;
};

// Success, or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor): `return error;`

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }

  const Error& error() const& { return require_error(), *error_; }
  Error error() && { return require_error(), std::move(*error_); }

 private:
  void require_error() const {
    if (!error_) detail::bad_result_access("error() of a good Status", nullptr);
  }

  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace tutti
