// NCCL's parameter functions (ncclParamBind() and others), implemented with parameters.h. A handle is the address of a
// Parameter of this process, and is valid until the process exits. A text or table that a function returns belongs to
// the calling thread, and is valid until this thread calls the same function again or ends.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "nccl/api.h"
#include "nccl/environment/parameters.h"

namespace tutti::nccl {
namespace {

ncclResult_t refuse_secret(const char* function, const Parameter& parameter) {
  if (!parameter.is_hidden) return ncclSuccess;
  return fail(ncclInvalidArgument,
              fmt::format("{}: {} is set (secret): its value is not returned", function, parameter.name));
}

ncclResult_t find(const char* function, const char* key, const Parameter** parameter) {
  if (key == nullptr) return fail(ncclInvalidArgument, fmt::format("{}: the name is null", function));
  const auto& parameters = process_parameters();
  if (!parameters) return fail(parameters.error());
  *parameter = parameters->find(key);
  if (*parameter != nullptr) return ncclSuccess;
  return fail(ncclInvalidArgument, fmt::format("{}: there is no parameter {}: ncclParamGetAllParameterKeys() lists "
                                               "all if NCCL_PARAM_DUMP_ALL=1 is set",
                                               function, key));
}

// Every function that returns the value of one parameter calls find_value() or check_value(), so that none can return a
// secret.
ncclResult_t find_value(const char* function, const char* key, const Parameter** parameter) {
  if (const ncclResult_t right = find(function, key, parameter); right != ncclSuccess) return right;
  return refuse_secret(function, **parameter);
}

ncclResult_t check_value(const char* function, ncclParamHandle_t handle, const void* out, const Parameter** parameter) {
  if (out == nullptr) return fail(ncclInvalidArgument, fmt::format("{}: the place for the value is null", function));
  const auto& parameters = process_parameters();
  if (!parameters) return fail(parameters.error());
  *parameter = reinterpret_cast<const Parameter*>(handle);
  if (parameters->holds(*parameter)) return refuse_secret(function, **parameter);
  return fail(ncclInvalidArgument, fmt::format("{}: the handle is none that ncclParamBind() returned", function));
}

template <class Number>
ncclResult_t get_number(const char* function, ncclParamHandle_t handle, Number* out) {
  return guarded([&] {
    const Parameter* parameter = nullptr;
    if (const ncclResult_t right = check_value(function, handle, out, &parameter); right != ncclSuccess) return right;
    using Limits = std::numeric_limits<Number>;
    constexpr auto kMost =
        std::min<std::uint64_t>(std::uint64_t{Limits::max()}, std::numeric_limits<std::int64_t>::max());
    const auto number = number_between(*parameter, std::int64_t{Limits::min()}, static_cast<std::int64_t>(kMost));
    if (!number) return fail(number.error());
    *out = static_cast<Number>(*number);
    return ncclSuccess;
  });
}

}  // namespace

TUTTI_NCCL(ncclResult_t, ParamBind, ncclParamHandle_t* out, const char* key) {
  return guarded([&] {
    if (out == nullptr) return fail(ncclInvalidArgument, "ncclParamBind: the place for the handle is null");
    const Parameter* parameter = nullptr;
    if (const ncclResult_t right = find("ncclParamBind", key, &parameter); right != ncclSuccess) return right;
    // The handle type has no const, but nothing is ever written through a handle.
    *out = reinterpret_cast<ncclParamHandle_t>(const_cast<Parameter*>(parameter));
    return ncclSuccess;
  });
}

TUTTI_NCCL(ncclResult_t, ParamGetI8, ncclParamHandle_t h, int8_t* out) { return get_number("ncclParamGetI8", h, out); }

TUTTI_NCCL(ncclResult_t, ParamGetI16, ncclParamHandle_t h, int16_t* out) {
  return get_number("ncclParamGetI16", h, out);
}

TUTTI_NCCL(ncclResult_t, ParamGetI32, ncclParamHandle_t h, int32_t* out) {
  return get_number("ncclParamGetI32", h, out);
}

TUTTI_NCCL(ncclResult_t, ParamGetI64, ncclParamHandle_t h, int64_t* out) {
  return get_number("ncclParamGetI64", h, out);
}

TUTTI_NCCL(ncclResult_t, ParamGetU8, ncclParamHandle_t h, uint8_t* out) { return get_number("ncclParamGetU8", h, out); }

TUTTI_NCCL(ncclResult_t, ParamGetU16, ncclParamHandle_t h, uint16_t* out) {
  return get_number("ncclParamGetU16", h, out);
}

TUTTI_NCCL(ncclResult_t, ParamGetU32, ncclParamHandle_t h, uint32_t* out) {
  return get_number("ncclParamGetU32", h, out);
}

TUTTI_NCCL(ncclResult_t, ParamGetU64, ncclParamHandle_t h, uint64_t* out) {
  return get_number("ncclParamGetU64", h, out);
}

TUTTI_NCCL(ncclResult_t, ParamGetStr, ncclParamHandle_t h, const char** out) {
  return guarded([&] {
    thread_local std::string text;
    const Parameter* parameter = nullptr;
    if (const ncclResult_t right = check_value("ncclParamGetStr", h, out, &parameter); right != ncclSuccess)
      return right;
    text = parameter->text;
    *out = text.c_str();
    return ncclSuccess;
  });
}

TUTTI_NCCL(ncclResult_t, ParamGet, ncclParamHandle_t h, void* out, int maxLen, int* len) {
  return guarded([&] {
    const Parameter* parameter = nullptr;
    if (const ncclResult_t right = check_value("ncclParamGet", h, out, &parameter); right != ncclSuccess) return right;
    if (len == nullptr) return fail(ncclInvalidArgument, "ncclParamGet: the place for the length is null");
    const std::string bytes = bytes_of(*parameter);
    if (maxLen < 0 || bytes.size() > static_cast<std::size_t>(maxLen)) {
      return fail(ncclInvalidArgument, fmt::format("ncclParamGet: {} takes {} bytes, and there is room for {}",
                                                   parameter->name, bytes.size(), maxLen));
    }
    std::memcpy(out, bytes.data(), bytes.size());
    *len = static_cast<int>(bytes.size());
    return ncclSuccess;
  });
}

TUTTI_NCCL(ncclResult_t, ParamGetParameter, const char* key, const char** value, int* valueLen) {
  return guarded([&] {
    thread_local std::string text;
    if (value == nullptr || valueLen == nullptr) {
      return fail(ncclInvalidArgument, "ncclParamGetParameter: the place for the value or for its length is null");
    }
    const Parameter* parameter = nullptr;
    if (const ncclResult_t right = find_value("ncclParamGetParameter", key, &parameter); right != ncclSuccess)
      return right;
    text = parameter->text;
    *value = text.c_str();
    *valueLen = static_cast<int>(text.size());
    return ncclSuccess;
  });
}

TUTTI_NCCL(ncclResult_t, ParamGetAllParameterKeys, const char*** table, int* tableLen) {
  return guarded([&] {
    thread_local std::vector<const char*> keys;
    if (table == nullptr || tableLen == nullptr) {
      return fail(ncclInvalidArgument, "ncclParamGetAllParameterKeys: the place for the table or its length is null");
    }
    const auto& parameters = process_parameters();
    if (!parameters) return fail(parameters.error());
    keys.clear();
    for (const Parameter* one : parameters->listed()) keys.push_back(one->name.c_str());
    *table = keys.data();
    *tableLen = static_cast<int>(keys.size());
    return ncclSuccess;
  });
}

TUTTI_NCCL(void, ParamDumpAll, void) {
  static_cast<void>(guarded([] {
    const auto& parameters = process_parameters();
    if (!parameters) return fail(parameters.error());
    std::fputs(dump(*parameters).c_str(), stderr);
    return ncclSuccess;
  }));
}

}  // namespace tutti::nccl
