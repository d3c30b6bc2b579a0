// Packets between the UnixExchanges of two processes: their format, and how to send and receive a packet together
// with its datagram or its file descriptor.
//
// A descriptor that arrives with a packet needs a free descriptor number in the receiving process. If there is none,
// the kernel drops the descriptor. For this reason a packet is inspected before it is removed from the socket, and
// SpareDescriptor keeps one number in reserve. So a process that has reached its limit of open files can normally still
// receive a descriptor, map its memory, and close the descriptor again.
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
  kShareAgain = 7  // asks the owner of mapping `id` to share it again, because it could not be received or mapped
};

struct UnixPacket {
  static constexpr std::uint32_t kMagic = 0x5455584d;

  std::uint32_t magic = kMagic;
  UnixOperation operation{};
  // kHello: rank of the sender; kWake: number of the segment to wake; kDatagram: 0; otherwise: number of the mapping or
  // file.
  std::uint32_t id = 0;
  std::uint32_t reserved = 0;
  Nonce nonce{};              // kHello: the nonce of the receiver; otherwise zero
  std::uint64_t channel = 0;  // kDatagram: channel of the datagram that follows; otherwise 0
};

// A file descriptor that only reserves a descriptor number. It is closed if a descriptor arrives and no other number is
// free. Not thread-safe.
class SpareDescriptor {
 public:
  SpareDescriptor() { restore(); }
  ~SpareDescriptor() { release(); }
  SpareDescriptor(const SpareDescriptor&) = delete;
  SpareDescriptor& operator=(const SpareDescriptor&) = delete;

  bool release();  // closes the descriptor; false if no number was reserved
  bool restore();  // reserves a number again if none is reserved; false if that fails

 private:
  int fd_ = -1;
};

enum class UnixTransfer : std::uint8_t {
  kDone,
  kLater,  // for example, the socket is full or empty, or the system is short of memory: try again
  kEnd     // the peer has closed its end or does not use this protocol, or the socket has failed
};

// Sends a packet. `fd` is sent with it, and the caller still owns `fd`; -1: no descriptor. `datagram` may be empty.
// Does not block.
UnixTransfer send_packet(int socket, const UnixPacket& packet, const std::string& datagram, int fd);

struct ReceivedPacket {
  UnixPacket packet;
  std::string datagram;
  OwnedDescriptor fd;  // closed unless it is released
  // A descriptor was sent, but did not arrive: this process had no free number, or may not receive it. Also true if
  // several were sent and not all have arrived.
  bool fd_lost = false;
};

// Receives a packet into `received`, which is valid if the result is kDone. If the packet contains a descriptor and
// no number is free, `spare` is released. Does not block.
UnixTransfer receive_packet(int socket, SpareDescriptor& spare, ReceivedPacket& received);

}  // namespace tutti
