#include "transports/tcp/tcp_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/assert.h"
#include "base/exceptions.h"
#include "transports/shm/mapping.h"
#include "transports/tcp/receive_connection.h"
#include "transports/tcp/send_connection.h"

namespace tutti {
namespace {

// A window over TCP: memory that only this rank accesses, because peers get copies of the data.
class PlainWindow final : public Window {
 public:
  PlainWindow(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  explicit PlainWindow(std::shared_ptr<Mapping> mapping)
      : mapping_(std::move(mapping)), data_(mapping_->data()), bytes_(mapping_->size()) {}
  std::byte* data() const override { return data_; }
  std::size_t size() const override { return bytes_; }

 private:
  std::shared_ptr<Mapping> mapping_;  // from allocate_window(); null if adopt_window() got the memory from its caller
  std::byte* data_;
  std::size_t bytes_;
};

}  // namespace

Result<std::unique_ptr<TcpTransport>> TcpTransport::create(const TcpTransportOptions& options,
                                                           std::shared_ptr<TcpEndpoint> endpoint,
                                                           const std::vector<std::string>& addresses) {
  auto links = TcpLinks::create(options, std::move(endpoint), addresses);
  if (!links) return links.error();
  return std::unique_ptr<TcpTransport>(new TcpTransport(std::move(*links)));  // the constructor is private
}

TcpTransport::~TcpTransport() {
  if (links_->own_process()) runs_through([this] { links_->send_close(); });
}

Result<std::unique_ptr<SendConnection>> TcpTransport::open_send(std::uint32_t peer, std::uint16_t lane) {
  TUTTI_ASSERT(links_->reaches(peer) && lane < lanes());
  auto opened = TcpSendConnection::open(links_, peer, lane);
  if (!opened) return opened.error();
  return std::unique_ptr<SendConnection>(std::move(*opened));
}

Result<std::unique_ptr<ReceiveConnection>> TcpTransport::open_receive(std::uint32_t peer, std::uint16_t lane) {
  TUTTI_ASSERT(links_->reaches(peer) && lane < lanes());
  return std::unique_ptr<ReceiveConnection>(std::make_unique<TcpReceiveConnection>(links_, peer, lane));
}

void TcpTransport::leave_call(const CallTag& tag, const std::optional<CallFailure>& failure) {
  links_->pusher().leave(tag, failure);
}

std::optional<CallTag> TcpTransport::peer_call(std::uint32_t peer, std::uint64_t sequence) {
  return links_->board(peer).call(sequence);
}

std::optional<CallFailure> TcpTransport::peer_failure(std::uint32_t peer, std::uint64_t sequence) {
  return links_->board(peer).failure(sequence);
}

bool TcpTransport::peer_has_left(std::uint32_t peer, std::uint64_t sequence) {
  return links_->board(peer).status().left >= sequence;
}

Result<std::unique_ptr<Window>> TcpTransport::allocate_window(std::size_t bytes) {
  auto mapping = Mapping::create(bytes, true);
  if (!mapping) return mapping.error();
  return std::unique_ptr<Window>(std::make_unique<PlainWindow>(std::move(*mapping)));
}

Result<std::unique_ptr<Window>> TcpTransport::adopt_window(void* data, std::size_t bytes) {
  return std::unique_ptr<Window>(std::make_unique<PlainWindow>(static_cast<std::byte*>(data), bytes));
}

}  // namespace tutti
