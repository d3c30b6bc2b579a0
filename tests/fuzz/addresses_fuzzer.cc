// Fuzzes the addresses that ranks send to each other as text: unique ids, TCP and Unix addresses, lists of RDMA
// ports. A parsed address must print to a text that is parsed to the same address.
#include "bootstrap/unique_id_parts.h"
#include "support.h"
#include "transports/shm/unix_address.h"
#include "transports/tcp/wire.h"
#ifdef TUTTI_FUZZ_VERBS
#include "transports/verbs/offer.h"
#endif

namespace {

using namespace tutti;
using fuzz::demand;

void check_unique_id_text(std::string_view text) {
  const auto id = UniqueId::from_text(text);
  if (!id)
    return demand(id.error().code == ErrorCode::kInvalidArgument && !id.error().message.empty(),
                  "an error has a message and a known code");
  demand(UniqueId::from_text(id->to_text()).value() == *id, "ids are read back");
}

// Corrects the checksum of the input first, so that the code after the check is reached.
void check_unique_id(std::string_view bytes) {
  UniqueId id;
  std::memcpy(id.bytes.data(), bytes.data(), std::min(bytes.size(), id.bytes.size()));
  constexpr std::size_t kCheckPlace = 120;
  const std::uint64_t check = spread({reinterpret_cast<const char*>(id.bytes.data()), kCheckPlace});
  std::memcpy(id.bytes.data() + kCheckPlace, &check, sizeof(check));
  const auto parts = unpack_unique_id(id);
  if (!parts)
    return demand(parts.error().code == ErrorCode::kInvalidArgument, "an error has a message and a known code");
  demand(parts->port != 0 && parse_host(parts->address).ok() && parts->job_id.size() == 32, "an id has all its parts");
  check_unique_id_text(id.to_text());
}

void check_tcp(const std::string& text) {
  const auto address = PeerAddress::parse(text, 3);
  if (!address) return demand(address.error().rank == 3, "names the rank");
  const std::string printed = address->text();
  const auto again = PeerAddress::parse(printed, 3);
  demand(again.ok() && again->text() == printed && again->nonce == address->nonce, "TCP addresses are read back");
}

void check_unix(const std::string& text) {
  const auto address = UnixAddress::parse(text);
  if (!address) return;
  const auto again = UnixAddress::parse(address->text());
  demand(again && again->name == address->name && again->nonce == address->nonce, "Unix addresses are read back");
}

void check_ports([[maybe_unused]] const std::string& text) {
#ifdef TUTTI_FUZZ_VERBS
  const auto ports = parse_offer(text);
  if (!ports) return demand(ports.error().code == ErrorCode::kRefused, "an error has a message and a known code");
  demand(ports->size() <= kMaxPorts, "the number of ports is limited");
  const std::string printed = print_offer(*ports);
  demand(print_offer(parse_offer(printed).value()) == printed, "ports are read back");
  match_rails(*ports, *ports);
#endif
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const auto kind = input.take<std::uint8_t>();
  const std::string text(input.rest());
  switch (kind % 5) {
    case 0: check_unique_id_text(text); break;
    case 1: check_unique_id(text); break;
    case 2: check_tcp(text); break;
    case 3: check_unix(text); break;
    default: check_ports(text);
  }
  return 0;
}
