// Fuzzes the messages of the set-up (bootstrap/bootstrap_wire.h): hello, challenge, answer, welcome, failures,
// rounds and seals. Parsed messages must have the bytes of the input, written messages must be parsed again, and an
// altered frame must not pass its seal.
#include "bootstrap/bootstrap_wire.h"
#include "support.h"

namespace {

using namespace tutti;
using fuzz::demand;

void check_words(std::string_view body) {
  if (const auto hello = wire::read_hello(body)) {
    demand(bytes_of(*hello) == body, "a hello has the bytes of the input");
    demand(wire::read_protocol(body) == wire::kProtocol, "a hello has this protocol version");
  }
  if (const auto challenge = wire::read_challenge(body)) demand(bytes_of(*challenge) == body.substr(1), "challenge");
  if (const auto answer = wire::read_answer(body)) demand(bytes_of(*answer) == body, "answer");
  if (const auto nonce = wire::read_meeting(body)) demand(bytes_of(*nonce) == body.substr(1), "meeting");
  const auto reason = wire::read_refusal(body);
  demand(!reason || !wire::read_challenge(body), "a greeting is a refusal or a challenge");
  const std::string shown = wire::harmless(body);
  demand(shown.size() <= 300, "the printed text is short");
  for (const char c : shown) demand(c >= ' ' && c <= '~', "the printed text has only printable characters");
}

void check_failure(std::string_view body) {
  const Error failure = wire::unpack_failure(body);
  demand(failure.rank >= -1 && to_string(failure.code) != "unknown error",
         "a failure names a rank or none, and a known code");
  demand(wire::unpack_failure(wire::pack_failure(failure)) == failure, "failures are read back");
}

void check_round(std::string_view body, std::size_t count) {
  const auto blobs = wire::unpack(body, count);
  if (!blobs) return;
  demand(blobs->size() == count && wire::pack(*blobs) == body, "a round consists of its blobs only");
}

void check_seal(std::string_view body, std::size_t place, std::uint8_t flip) {
  const Key key = {1, 2, 3};
  const auto seal = [&] { return wire::Seal(key, {}, {}, wire::Seal::Direction::kToServer); };
  std::string sealed = std::string(body) + std::string(bytes_of(seal().next(sha256({body}))));
  demand(seal().open(sealed) == body, "a sealed frame can be opened");
  demand(!seal().open(std::string(body)), "a frame without a seal is refused");
  if (flip == 0) return;
  sealed[place % sealed.size()] = static_cast<char>(sealed[place % sealed.size()] ^ flip);
  demand(!seal().open(sealed), "an altered frame is refused");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const auto count = input.take<std::uint8_t>();
  const auto place = input.take<std::uint16_t>();
  check_words(input.rest());
  check_failure(input.rest());
  check_round(input.rest(), count % 17);
  check_seal(input.rest(), place, count);
  return 0;
}
