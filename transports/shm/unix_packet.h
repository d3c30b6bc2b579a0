// Packets between the exchanges of two processes (unix_exchange.h): their format, and how to send and receive a
// packet with its datagram or its file descriptor.
//
// A descriptor that arrives with a packet needs a free descriptor number in the receiving process. If there is none,
// the kernel drops the descriptor. For this reason a packet is inspected before it is removed from the socket, and
// SpareDescriptor keeps one number in reserve. So a process that has reached its limit of open files can still
// receive a descriptor, map its memory, and close it again.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "transports/shm/owned_descriptor.h"
#include "transports/shm/unix_address.h"

namespace tutti {

enum class UnixOperation : std::uint32_t {
  kHello = 1,
  kShare = 2,
  kUnshare = 3,
  kWake = 4,
  kDatagram = 5,
  kShareFile = 6,
  kShareAgain = 7  // sent to the owner: its mapping `id` was lost on the way to this rank
};

struct UnixPacket {
  static constexpr std::uint32_t kMagic = 0x5455584d;

  std::uint32_t magic = kMagic;
  UnixOperation operation{};
  std::uint32_t id = 0;  // number of the mapping; segment to wake; or rank of the sender, in a hello
  std::uint32_t reserved = 0;
  Nonce nonce{};              // only in a hello
  std::uint64_t channel = 0;  // channel of the datagram that follows
};

// A file descriptor that only reserves a number. It is given up when no other number is free. Not thread-safe.
class SpareDescriptor {
 public:
  SpareDescriptor() { restore(); }
  ~SpareDescriptor() { release(); }
  SpareDescriptor(const SpareDescriptor&) = delete;
  SpareDescriptor& operator=(const SpareDescriptor&) = delete;

  bool release();  // frees the number; false if there is no reserved number
  bool restore();  // reserves a number again; false if none is free

 private:
  int fd_ = -1;
};

enum class UnixTransfer : std::uint8_t {
  kDone,
  kLater,  // the socket is full or empty, or the system is temporarily short of memory: try again
  kEnd     // the peer has closed its end, or does not use this protocol
};

// Sends a packet. `fd` is sent with it and stays the property of the caller; -1: no descriptor. The datagram may be
// empty. Does not block.
UnixTransfer send_packet(int socket, const UnixPacket& packet, const std::string& datagram, int fd);

struct ReceivedPacket {
  UnixPacket packet;
  std::string datagram;
  OwnedDescriptor fd;    // closed unless it is released
  bool fd_lost = false;  // a descriptor was sent, but this process had no free number for it, or may not receive it
};

// Receives a packet. kDone: `received` is filled. If the packet contains a descriptor and no number is free, the
// spare descriptor is given up. Does not block.
UnixTransfer receive_packet(int socket, SpareDescriptor& spare, ReceivedPacket& received);

}  // namespace tutti
