// HubLine: one connection of a RendezvousHub, and what waits to be sent on it. The hub's thread.
#pragma once

// clang-format off
#include <utility>  // before Asio 1.74, which forgets it
// clang-format on

#include <array>
#include <boost/asio.hpp>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "base/hmac.h"
#include "runtime/bootstrap_wire.h"

namespace tutti::detail {

struct HubLine {
  // A body that many ranks may get, and the SHA-256 of it, by which each one's seal is made.
  struct Body {
    explicit Body(std::string given) : text(std::move(given)), digest(sha256({text})) {}
    std::string text;
    Digest digest;
  };
  struct Parcel {
    std::shared_ptr<const Body> body;  // shared by the lines that it goes out on
    std::array<char, 4> header{};
    Tag seal{};
    std::size_t seal_bytes = 0;
  };

  HubLine(boost::asio::io_context& io, boost::asio::ip::tcp::socket given) : socket(std::move(given)), patience(io) {}

  // Sealed, once the line has seals.
  void push(std::shared_ptr<const Body> what) {
    Parcel parcel{.body = std::move(what)};
    if (to_rank) {
      parcel.seal = to_rank->next(parcel.body->digest);
      parcel.seal_bytes = sizeof(parcel.seal);
    }
    const auto length = static_cast<std::uint32_t>(parcel.body->text.size() + parcel.seal_bytes);
    std::memcpy(parcel.header.data(), &length, sizeof(length));
    outbox.push_back(std::move(parcel));
  }
  // Of the first parcel, where it lies.
  std::array<boost::asio::const_buffer, 3> next_bytes() const {
    const Parcel& parcel = outbox.front();
    return {boost::asio::buffer(parcel.header), boost::asio::buffer(parcel.body->text),
            boost::asio::buffer(parcel.seal.data(), parcel.seal_bytes)};
  }

  boost::asio::ip::tcp::socket socket;
  boost::asio::steady_timer patience;
  std::uint64_t number = 0;  // in the order of coming
  wire::Hello hello;
  wire::Nonce nonce{};                        // what it is challenged with
  std::optional<wire::Seal> to_hub, to_rank;  // once it has proved that it has the key
  std::int32_t rank = -1;                     // until it is admitted
  bool has_quit = false;
  bool refused = false;
  std::optional<std::string> blob;  // of the present round
  std::array<char, 4> header{};
  std::string body;
  std::deque<Parcel> outbox;  // at most: challenge, welcome, a result, a failure
};

}  // namespace tutti::detail
