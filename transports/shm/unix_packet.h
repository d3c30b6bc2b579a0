// Packets between the exchanges of two processes (unix_exchange.h): what they hold, and how one is sent and received,
// with its datagram or its file descriptor.
//
// A descriptor that comes with a packet needs a free number in the receiving process. The kernel drops the descriptor
// if there is none, so a packet is looked at before it is taken off the socket, and SpareDescriptor holds one number in
// reserve: a process that has reached its limit of open files can still receive a descriptor, map its memory and close
// it again.
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
  kPoke = 4,
  kDatagram = 5,
  kShareFile = 6,
  kShareAgain = 7  // to the owner: its mapping `id` was lost on the way to this rank
};

struct UnixPacket {
  static constexpr std::uint32_t kMagic = 0x5455584d;

  std::uint32_t magic = kMagic;
  UnixOperation operation{};
  std::uint32_t id = 0;  // of the mapping; of the segment to wake; in a hello the rank
  std::uint32_t reserved = 0;
  Nonce nonce{};              // in a hello
  std::uint64_t channel = 0;  // of a datagram, which follows
};

// A file descriptor that is kept only to be given up when no other is free. Not thread-safe.
class SpareDescriptor {
 public:
  SpareDescriptor() { restore(); }
  ~SpareDescriptor() { release(); }
  SpareDescriptor(const SpareDescriptor&) = delete;
  SpareDescriptor& operator=(const SpareDescriptor&) = delete;

  bool release();  // frees the number; false if it is in use already
  bool restore();  // takes a number again; false if none is free

 private:
  int fd_ = -1;
};

enum class UnixTransfer : std::uint8_t {
  kDone,
  kLater,  // the socket is full or empty, or the system lacks memory for the moment: try again
  kEnd     // the peer has closed its end, or does not speak this protocol
};

// Does not take `fd`; -1: the packet goes without one. The datagram may be empty. Does not block.
UnixTransfer send_packet(int socket, const UnixPacket& packet, const std::string& datagram, int fd);

struct ReceivedPacket {
  UnixPacket packet;
  std::string datagram;
  OwnedDescriptor fd;    // closed unless it is released
  bool fd_lost = false;  // one came, and this process had no free number for it, or may not have it
};

// kDone: `received` is filled. Gives up the spare descriptor if the packet's own needs its number. Does not block.
UnixTransfer receive_packet(int socket, SpareDescriptor& spare, ReceivedPacket& received);

}  // namespace tutti
