// system_error(): an error of the operating system as a Tutti error, with the reason as text.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <string_view>

#include "tutti/result.h"

namespace tutti::tool {

// Returns an error with the message "WHAT: REASON", for example "cannot open FILE: No such file or directory".
// `error_number` is the value of errno.
inline Error system_error(std::string_view what, int error_number) {
  const char* reason = strerrordesc_np(error_number);
  return Error{.code = ErrorCode::kSystem,
               .scope = ErrorScope::kCall,
               .message = fmt::format("{}: {}", what, reason != nullptr ? reason : "unknown reason")};
}

}  // namespace tutti::tool
