// fuzz_seeds FOLDER: writes the initial inputs of the fuzz targets to FOLDER/TARGET/NAME, with the code that
// produces such data.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>

#include "algorithms/algorithms.h"
#include "bootstrap/bootstrap_wire.h"
#include "job/recorder.h"
#include "membership/oob_channel.h"
#include "model/parameters.h"
#include "plan/formats/json.h"
#include "selection/tuning.h"
#include "topology/cluster.h"
#include "topology/xml/xml.h"
#include "transports/shm/unix_address.h"
#include "transports/tcp/wire.h"

namespace {

using namespace tutti;

class Folder {
 public:
  explicit Folder(std::filesystem::path path) : path_(std::move(path)) {}
  void put(const char* target, const char* name, const std::string& bytes) const {
    std::filesystem::create_directories(path_ / target);
    std::ofstream(path_ / target / name, std::ios::binary) << bytes;
  }

 private:
  std::filesystem::path path_;
};

template <class T>
std::string text_of(const T& value) {
  return std::string(bytes_of(value));
}

std::string ending(char kind, std::string_view bytes) { return std::string(1, kind).append(bytes); }

void put_setup(const Folder& folder) {
  const std::string head(3, '\0');  // parameters of the fuzz target: see setup_fuzzer.cc
  folder.put("setup_fuzzer", "hello", head + text_of(wire::Hello{}));
  folder.put("setup_fuzzer", "challenge", head + ending('\2', text_of(wire::Challenge{})));
  folder.put("setup_fuzzer", "answer", head + text_of(wire::Answer{}));
  folder.put("setup_fuzzer", "meeting", head + ending('\1', text_of(wire::Nonce{})));
  folder.put("setup_fuzzer", "refusal", head + ending('\0', "this is another job"));
  folder.put("setup_fuzzer", "failure", head + wire::pack_failure({ErrorCode::kTimeout, {}, 2, "rank 2 did not come"}));
  folder.put("setup_fuzzer", "round", std::string("\3\0\0", 3) + wire::pack({"one", "", "three"}));
}

void put_addresses(const Folder& folder) {
  folder.put("addresses_fuzzer", "id", ending('\0', std::string(256, 'a')));
  UniqueId id;
  const std::string_view start("TUTTIUID\1\4\0\120\177\0\0\1", 16);
  std::memcpy(id.bytes.data(), start.data(), start.size());
  folder.put("addresses_fuzzer", "parts", ending('\1', text_of(id.bytes)));
  PeerAddress address{.socket = parse_host("127.0.0.1").value()};
  address.socket.set_port(4711);
  folder.put("addresses_fuzzer", "tcp", ending('\2', address.text()));
  folder.put("addresses_fuzzer", "unix", ending('\3', UnixAddress{.nonce = {}, .name = "tutti-0"}.text()));
  folder.put("addresses_fuzzer", "ports", ending('\4', "verbs2;rxe0,1,2,1000,3,0," + std::string(32, '0') + ",0"));
}

void put_wire(const Folder& folder) {
  const CallTag tag{.sequence = 1, .count = 10};
  const std::string message = text_of(FrameHeader{.bytes = 8, .tag = tag}) + "12345678";
  folder.put("tcp_fuzzer", "message", std::string("\0\0", 2) + message + message);
  const FrameHeader state{.kind = FrameKind::kState, .bytes = sizeof(StateRecord), .tag = tag};
  folder.put("tcp_fuzzer", "state", std::string("\1\0", 2) + text_of(state) + text_of(StateRecord{.entered = 1}));
  folder.put("tcp_fuzzer", "goodbye", std::string("\0\0", 2) + message + text_of(make_close_frame(1, 1)));
  folder.put("tcp_fuzzer", "preamble", ending('\2', text_of(Preamble{})) + message);
  folder.put("tcp_fuzzer", "datagram",
             ending('\3', text_of(FrameHeader{.kind = FrameKind::kDatagram, .bytes = 3}) + "abc"));
  std::string letter(1, '\0');
  for (const std::string& datagram : detail::split_into_datagrams("a letter")) {
    letter += ending(static_cast<char>(datagram.size()), datagram);
  }
  folder.put("oob_fuzzer", "mail", letter);
  const std::string introduction("\1\11\0\0\0\0\1\0\0\0x", 11);
  folder.put("oob_fuzzer", "introduction", introduction);
  folder.put("oob_fuzzer", "consensus", ending('\2', std::string(1, '\1') + ending(49, std::string(49, '\1'))));
  folder.put("pmi_fuzzer", "answers",
             "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\ncmd=my_kvsname kvsname=kvs_0\n"
             "cmd=get_result rc=0 msg=success value=v\ncmd=put_result rc=0 msg=success\ncmd=barrier_out\n");
}

void put_texts(const Folder& folder) {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kOneShot, Algorithm::kTree}) {
    const auto generator = find_generator({.kind = CollectiveKind::kAllReduce, .ranks = 3}, algorithm);
    if (!generator) continue;
    folder.put("plan_json_fuzzer", std::string(to_string(algorithm)).c_str(),
               to_json({.plan = build_plan(*generator), .name = "plan", .comment = "of a seed"}));
  }
  const Parameters parameters = default_host_parameters(2);
  folder.put("tuning_fuzzer", "parameters", ending('\0', to_json(parameters)));
  folder.put("tuning_fuzzer", "rules", "\1all_reduce:..64K:ranks<=8=ring/128K; broadcast=tree");
  folder.put("tuning_fuzzer", "told", ending('\2', detail::pack({.parameters = parameters})));
  folder.put("tuning_fuzzer", "measured", ending('\2', detail::pack({.parameters = parameters, .measured = true})));
  for (const char* shape : {"dgx-h100", "dgx-v100"}) {
    const auto cluster = make_shape({.name = shape});
    const auto xml = cluster ? to_xml(cluster->machine) : Result<std::string>(cluster.error());
    if (xml) folder.put("topology_xml_fuzzer", shape, *xml);
  }
}

// A file that a Recorder has written.
void put_recording(const Folder& folder) {
  std::string name = std::filesystem::temp_directory_path() / "tutti-seeds-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) return;
  // shared because Recorder::create() requires it
  auto files = std::make_shared<RecordingFolder>(std::vector<std::string>{name}, Log(LogLevel::kOff, 0));
  if (const auto recorder = Recorder::create(files, {.ranks = 4, .transport = "shm", .capacity = 16})) {
    const CallTag tag{.sequence = 1, .count = 100};
    recorder->end(recorder->begin(tag, recording::CallPath::kMessages), recorder->now());
    recorder->count(tag.kind, 400, true);
    recorder->failed({ErrorCode::kTimeout, ErrorScope::kCommunicator, 1, "late"}, 1);
    for (const auto& entry : std::filesystem::directory_iterator(name)) {
      std::ifstream file(entry.path(), std::ios::binary);
      folder.put("recording_fuzzer", "one", {std::istreambuf_iterator<char>(file), {}});
    }
  }
  std::filesystem::remove_all(name);
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) {
    std::cerr << "usage: fuzz_seeds FOLDER\n";
    return 2;
  }
  const Folder folder(words[1]);
  put_setup(folder);
  put_addresses(folder);
  put_wire(folder);
  put_texts(folder);
  put_recording(folder);
  return 0;
}
