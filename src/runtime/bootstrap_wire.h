// What ranks and hub say to each other during set-up, all integers little-endian. A frame is u32 length, then that many
// bytes. The first frame of a rank is a Hello; the hub answers with one byte, 1 welcome, or 0 followed by the reason.
//
//   rank to hub: 'b' and a blob: this rank's part of the next round       'q': this rank leaves set-up
//   hub to rank: '+' and all ranks' blobs as frames: the round's result   '!' and a Failure: there is none
//
// Round 0 has empty blobs: its result says that all ranks have come. Pure functions, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/result.h"

namespace tutti::wire {

inline constexpr std::uint32_t kHelloMagic = 0x48545554;  // "TUTH"
inline constexpr std::uint32_t kProtocol = 2;
inline constexpr std::size_t kMaxJobIdBytes = 128;
inline constexpr std::size_t kMaxHelloBytes = 1024;       // of any protocol: magic and protocol stand first in all
inline constexpr std::size_t kMaxFrameBytes = 64u << 20;  // all ranks' blobs at 16,384 ranks

struct Hello {
  std::uint32_t magic = kHelloMagic;
  std::uint32_t protocol = kProtocol;
  std::uint32_t version = 0;  // of the library: major * 1,000,000 + minor * 1,000 + patch
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::uint32_t job_id_bytes = 0;
  std::int64_t timeout_ms = 0;
  std::array<char, kMaxJobIdBytes> job_id{};
};
static_assert(sizeof(Hello) == 160);

std::uint32_t library_version();
std::string version_text(std::uint32_t version);

std::string frame(std::string_view body);
std::uint32_t frame_length(const std::array<char, 4>& header);

// Blobs of all ranks, packed into one body and out of it.
std::string pack(const std::vector<std::string>& blobs);
std::optional<std::vector<std::string>> unpack(std::string_view all, std::size_t count);

// An error, as one body without its letter, and back.
std::string pack_failure(const Error& error);
Error unpack_failure(std::string_view body);

}  // namespace tutti::wire
