// SPDX-License-Identifier: Apache-2.0
#include <zbpp/asio/detail/listener.hpp>
#include <zbpp/asio/token.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace test_asio_token {

namespace {

namespace fs = std::filesystem;
namespace net = boost::asio;
using net::ip::tcp;
using zbpp::asio::run_token;
using zbpp::asio::detail::link_purpose;
using bytes = std::vector<std::byte>;

std::string const secret = "0123456789abcdef-this-is-secret";

// What a test writes and sets, undone at its end.
class workplace {
 public:
  workplace() {
    std::string name = (fs::temp_directory_path() / "zbpp_token_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = name;
    clear();
  }
  workplace(workplace const&) = delete;
  workplace& operator=(workplace const&) = delete;
  ~workplace() {
    clear();
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

  fs::path file(std::string const& text, ::mode_t mode) {
    auto const path = path_ / ("token" + std::to_string(++files_));
    std::ofstream(path, std::ios::binary) << text;
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    return path;
  }
  fs::path const& path() const { return path_; }

 private:
  static void clear() {
    ::unsetenv("ZBPP_TOKEN");
    ::unsetenv("ZBPP_TOKEN_FILE");
  }
  fs::path path_;
  int files_ = 0;
};

std::string file_refusal(fs::path const& path, zbpp::errc code = zbpp::errc::bad_argument) {
  return zbpp::test::refusal(code, [&] { static_cast<void>(run_token::from_file(path)); });
}

std::string environment_refusal() {
  return zbpp::test::refusal([] { static_cast<void>(run_token::from_environment()); });
}

bytes to_bytes(std::string const& text) {
  bytes result(text.size());
  if (!text.empty()) std::memcpy(result.data(), text.data(), text.size());
  return result;
}

bool is_same(run_token const& one, run_token const& other) {
  auto const message = to_bytes("a message");
  return zbpp::asio::equal(one.sign(message), other.sign(message));
}

std::string hex(zbpp::asio::signature const& value) {
  std::string text;
  for (auto const b : value) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(b) >> 4];
    text += "0123456789abcdef"[std::to_integer<unsigned>(b) & 15U];
  }
  return text;
}

}  // namespace

TEST_CASE("a token signs with HMAC-SHA-256", "[asio][token]") {
  // RFC 4231, test case 6: a key of 131 bytes 0xaa. (Those with short keys are too short for us.)
  auto const token = run_token::from_text(std::string(131, '\xaa'));
  CHECK(
      hex(token.sign(to_bytes("Test Using Larger Than Block-Size Key - Hash Key First"))) ==
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(hex(token.sign({})) != hex(token.sign(to_bytes("x"))));
}

TEST_CASE("a token comes from the environment or from a file it names", "[asio][token]") {
  workplace here;
  auto const expected = run_token::from_text(secret);
  auto const path = here.file(secret, 0600);

  ::setenv("ZBPP_TOKEN_FILE", path.c_str(), 1);
  CHECK(is_same(run_token::from_environment(), expected));
  ::setenv("ZBPP_TOKEN", "another-token-that-wins", 1);
  CHECK(is_same(run_token::from_environment(), run_token::from_text("another-token-that-wins")));
  CHECK_FALSE(is_same(run_token::from_environment(), expected));
}

TEST_CASE("one line end behind the token in a file does not count", "[asio][token]") {
  workplace here;
  auto const expected = run_token::from_text(secret);
  CHECK(is_same(run_token::from_file(here.file(secret + "\n", 0600)), expected));
  CHECK(is_same(run_token::from_file(here.file(secret + "\r\n", 0400)), expected));
  CHECK_FALSE(is_same(run_token::from_file(here.file(secret + "\n\n", 0600)), expected));
  CHECK_FALSE(is_same(run_token::from_file(here.file(secret + " ", 0600)), expected));
}

TEST_CASE(
    "a token that is missing or of a wrong size is refused and never shown", "[asio][token]") {
  workplace here;
  CHECK(
      environment_refusal() ==
      "this run has no token: neither ZBPP_TOKEN nor ZBPP_TOKEN_FILE is set; make one for all "
      "ranks by ZBPP_TOKEN=$(openssl rand -hex 32)");
  ::setenv("ZBPP_TOKEN", "", 1);
  CHECK(environment_refusal().find("ZBPP_TOKEN has 0 bytes") == 0);
  ::setenv("ZBPP_TOKEN", "fifteen-bytes!!", 1);
  CHECK(
      environment_refusal() ==
      "ZBPP_TOKEN has 15 bytes; it must have at least 16; make one for all ranks by "
      "ZBPP_TOKEN=$(openssl rand -hex 32)");
  ::setenv("ZBPP_TOKEN", "sixteen-bytes!!!", 1);
  CHECK_NOTHROW(run_token::from_environment());

  auto const small = here.file("fifteen-bytes!!\n", 0600);
  CHECK(file_refusal(small).find("the token file " + small.string() + " has 15 bytes;") == 0);
  CHECK(file_refusal(here.file("", 0600)).find(" has 0 bytes;") != std::string::npos);
  CHECK(
      file_refusal(here.file(std::string(5000, 'x'), 0600)).find("more than 4096 bytes") !=
      std::string::npos);
  CHECK_NOTHROW(run_token::from_file(here.file(std::string(4096, 'x'), 0600)));
  CHECK(zbpp::test::refusal([] {
          static_cast<void>(run_token::from_text(std::string(4097, 'x')));
        }).find("the token has more than 4096 bytes") == 0);
}

TEST_CASE("a token file that others may touch is refused", "[asio][token]") {
  workplace here;
  for (::mode_t const open : {0640U, 0604U, 0660U, 0610U, 0601U, 0620U, 0602U, 0777U}) {
    CAPTURE(open);
    auto const path = here.file(secret, open);
    auto const text = file_refusal(path);
    CHECK(
        text ==
        "the token file " + path.string() + " is open to other users; close it by chmod 600");
    REQUIRE(::chmod(path.c_str(), 0600) == 0);
    CHECK_NOTHROW(run_token::from_file(path));
  }
}

TEST_CASE("a token file of another user is refused", "[asio][token]") {
  // Some other user's file that is there on any Linux; as root we can make one.
  workplace here;
  fs::path path = "/etc/passwd";
  if (::geteuid() == 0) {
    path = here.file(secret, 0600);
    if (::chown(path.c_str(), 12345, 12345) != 0)
      return zbpp::test::skip("the right to give a file away");
  }
  CHECK(file_refusal(path).find(" belongs to user ") != std::string::npos);
}

TEST_CASE("only a regular file is a token file", "[asio][token]") {
  workplace here;
  CHECK(file_refusal(here.path()).find(" is not a regular file") != std::string::npos);
  CHECK(file_refusal("/dev/zero").find(" is not a regular file") != std::string::npos);
  // Opening a pipe that nobody writes to must not hang.
  auto const pipe = here.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(file_refusal(pipe).find(" is not a regular file") != std::string::npos);
  auto const missing = here.path() / "missing";
  CHECK(
      file_refusal(missing, zbpp::errc::io_failed) ==
      "the token file " + missing.string() + " cannot be read: No such file or directory");
}

TEST_CASE("a symbolic link counts as what it points to", "[asio][token]") {
  workplace here;
  auto const real = here.file(secret, 0600);
  auto const link = here.path() / "link";
  fs::create_symlink(real, link);
  CHECK(is_same(run_token::from_file(link), run_token::from_text(secret)));
  REQUIRE(::chmod(real.c_str(), 0644) == 0);
  CHECK(file_refusal(link).find(" is open to other users") != std::string::npos);
}

namespace {

template <class T>
concept printable = requires(std::ostream& out, T const& t) { out << t; };

}  // namespace

TEST_CASE("a token cannot be printed, and is never empty", "[asio][token]") {
  STATIC_REQUIRE_FALSE(printable<run_token>);
  STATIC_REQUIRE_FALSE(std::is_convertible_v<run_token, std::string>);
  STATIC_REQUIRE_FALSE(std::is_default_constructible_v<run_token>);
  auto one = run_token::from_text(secret);
  auto const other = std::move(one);
  CHECK(is_same(one, other));  // moved from, and whole
}

TEST_CASE("challenges differ", "[asio][token]") {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) seen.insert(hex(zbpp::asio::make_challenge()));
  CHECK(seen.size() == 100);
}

// --- The handshake -------------------------------------------------------------------------------

namespace {

// The sizes of the three messages, as the comment of the header promises them.
constexpr std::size_t hello_size = 4 + 4 + 32;
constexpr std::size_t answer_size = 4 + 4 + 1 + 32 + 32;
constexpr std::size_t proof_size = 32;

constexpr std::chrono::seconds enough{20};

struct socket_pair {
  explicit socket_pair(net::io_context& io) : connecting(io), accepting(io) {
    tcp::acceptor acceptor(io, tcp::endpoint(net::ip::address_v4::loopback(), 0));
    connecting.connect(acceptor.local_endpoint());
    acceptor.accept(accepting);
  }
  tcp::socket connecting;
  tcp::socket accepting;
};

// How a handshake ended for one side: "" is well, else the message. Nothing: it has not ended.
using ending = std::optional<std::string>;

std::string text_of(std::exception_ptr const& failure) {
  if (!failure) return {};
  try {
    std::rethrow_exception(failure);
  } catch (zbpp::error const& e) {
    auto const text = std::string(e.what());
    // The peer's port differs from run to run.
    auto const space = text.find(' ');
    return std::string(zbpp::to_string(e.code())) + ":" + text.substr(space);
  } catch (std::exception const& e) {
    return std::string("<") + e.what() + ">";
  }
}

void start_introduce(
    net::io_context& io,
    tcp::socket& socket,
    run_token const& token,
    link_purpose use,
    ending& end) {
  net::co_spawn(
      io,
      zbpp::asio::detail::introduce(socket, token, use),
      [&](std::exception_ptr const& failure) {
        end = text_of(failure);
        boost::system::error_code ignored;
        if (failure) socket.close(ignored);
      });
}

void start_admit(
    net::io_context& io,
    tcp::socket& socket,
    run_token const& token,
    ending& end,
    link_purpose* use = nullptr) {
  net::co_spawn(
      io,
      zbpp::asio::detail::admit(socket, token),
      [&socket, &end, use](std::exception_ptr const& failure, link_purpose found) {
        end = text_of(failure);
        if (use != nullptr) *use = found;
        boost::system::error_code ignored;
        if (failure) socket.close(ignored);
      });
}

struct meeting {
  ending guest;
  ending host;
  link_purpose link{};
};

meeting meet(run_token const& of_guest, run_token const& of_host, link_purpose use) {
  net::io_context io;
  socket_pair pair(io);
  meeting result;
  start_introduce(io, pair.connecting, of_guest, use, result.guest);
  start_admit(io, pair.accepting, of_host, result.host, &result.link);
  io.run_for(enough);
  return result;
}

// What sits between two honest ends, or plays one of them: blocking, with a deadline.
class raw_end {
 public:
  explicit raw_end(tcp::socket& socket, net::io_context& io) : socket_(socket), io_(io) {}

  // Reads as many bytes as come, up to this many, while the other end runs.
  bytes read(std::size_t count) {
    bytes result(count);
    std::size_t got = 0;
    bool is_over = false;
    net::async_read(socket_, net::buffer(result), [&](boost::system::error_code, std::size_t size) {
      got = size;
      is_over = true;
    });
    io_.restart();
    auto const until = std::chrono::steady_clock::now() + enough;
    while (!is_over && std::chrono::steady_clock::now() < until)
      io_.run_one_until(until), io_.restart();
    REQUIRE(is_over);
    result.resize(got);
    return result;
  }
  void write(bytes const& content) {
    boost::system::error_code ignored;
    net::write(socket_, net::buffer(content), ignored);
  }
  void close() {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

 private:
  tcp::socket& socket_;
  net::io_context& io_;
};

void finish(net::io_context& io) {
  io.restart();
  io.run_for(enough);
}

// Both ends are honest and hold the token; all that they say goes through `change`, which is given
// each of the three messages and may change or shorten it. Shortened: the connection ends there.
struct relayed {
  ending guest;
  ending host;
  std::array<bytes, 3> said;
};

relayed relay(run_token const& token, std::function<bytes(int, bytes)> const& change) {
  net::io_context io;
  socket_pair left(io);   // guest to the relay
  socket_pair right(io);  // relay to the host
  relayed result;
  start_introduce(io, left.connecting, token, link_purpose::control, result.guest);
  start_admit(io, right.accepting, token, result.host);
  raw_end to_guest(left.accepting, io);
  raw_end to_host(right.connecting, io);
  constexpr std::array<std::size_t, 3> sizes{hello_size, answer_size, proof_size};
  for (int i = 0; i < 3; ++i) {
    auto& from = i == 1 ? to_guest : to_host;
    auto& to = i == 1 ? to_host : to_guest;
    auto const size = sizes[static_cast<std::size_t>(i)];
    auto const said = from.read(size);
    result.said[static_cast<std::size_t>(i)] = said;
    auto const passed = change(i, said);
    to.write(passed);
    if (said.size() < size || passed.size() < size) break;
  }
  to_guest.close();
  to_host.close();
  finish(io);
  return result;
}

bytes unchanged(int, bytes said) { return said; }

}  // namespace

TEST_CASE("two processes with one token believe each other", "[asio][handshake]") {
  auto const token = run_token::from_text(secret);
  for (auto const link : {link_purpose::control, link_purpose::data}) {
    auto const met = meet(token, run_token::from_text(secret), link);
    CHECK(met.guest == "");
    CHECK(met.host == "");
    CHECK(met.link == link);
  }
  auto const met = relay(token, unchanged);
  CHECK(met.guest == "");
  CHECK(met.host == "");
}

TEST_CASE("a guest with another token is refused and told so", "[asio][handshake]") {
  auto const met = meet(
      run_token::from_text("another token of a run"),
      run_token::from_text(secret),
      link_purpose::control);
  CHECK(
      met.host ==
      "refused peer: does not hold this run's token; give all ranks the same ZBPP_TOKEN or "
      "ZBPP_TOKEN_FILE");
  CHECK(
      met.guest ==
      "refused peer: refused this process: it holds another token; give all ranks the same "
      "ZBPP_TOKEN or ZBPP_TOKEN_FILE");
}

TEST_CASE("a host that does not hold the token is refused", "[asio][handshake]") {
  auto const token = run_token::from_text(secret);
  net::io_context io;
  socket_pair pair(io);
  ending guest;
  start_introduce(io, pair.connecting, token, link_purpose::data, guest);
  raw_end host(pair.accepting, io);
  bytes hello = to_bytes("zbpp");
  hello.resize(hello_size);
  hello[4] = std::byte{1};
  host.write(hello);
  REQUIRE(host.read(answer_size).size() == answer_size);
  SECTION("and signs with another one") {
    auto const other = run_token::from_text("another token of a run").sign(hello);
    host.write({other.begin(), other.end()});
    finish(io);
    REQUIRE(guest);
    CHECK(guest->find("refused peer: does not hold this run's token;") == 0);
  }
  SECTION("and says nothing") {
    host.close();
    finish(io);
    REQUIRE(guest);
    CHECK(guest->find("input or output failed: closed the connection instead of showing") == 0);
  }
}

TEST_CASE("the handshake is refused whichever byte is changed", "[asio][handshake]") {
  auto const token = run_token::from_text(secret);
  constexpr std::array<std::size_t, 3> sizes{hello_size, answer_size, proof_size};
  for (int message = 0; message < 3; ++message)
    for (std::size_t at = 0; at < sizes[static_cast<std::size_t>(message)]; ++at) {
      ZBPP_SEEDED(random, 1000 * message + static_cast<int>(at));
      CAPTURE(message, at);
      auto const bit = static_cast<unsigned>(random.integer(0, 7));
      auto const met = relay(token, [&](int i, bytes said) {
        if (i == message) said.at(at) ^= static_cast<std::byte>(1U << bit);
        return said;
      });
      // Nobody believes both: the guest never, and the host only what came before the change.
      REQUIRE(met.guest);
      REQUIRE(met.host);
      CHECK(met.guest != "");
      CHECK((met.host == "") == (message == 2));
      if (message == 2) CHECK(met.guest->find("refused peer: ") == 0);
      if (message == 1) CHECK(met.host->find("refused peer: ") == 0);
    }
}

TEST_CASE("the handshake is refused wherever it breaks off", "[asio][handshake]") {
  auto const token = run_token::from_text(secret);
  constexpr std::array<std::size_t, 3> sizes{hello_size, answer_size, proof_size};
  for (int message = 0; message < 3; ++message)
    for (std::size_t size = 0; size < sizes[static_cast<std::size_t>(message)]; ++size) {
      CAPTURE(message, size);
      auto const met = relay(token, [&](int i, bytes said) {
        if (i == message) said.resize(size);
        return said;
      });
      REQUIRE(met.guest);
      REQUIRE(met.host);
      CHECK(met.guest->find("input or output failed: ") == 0);
      CHECK((met.host == "") == (message == 2));
    }
}

TEST_CASE("what was said in one handshake opens no other", "[asio][handshake]") {
  auto const token = run_token::from_text(secret);
  auto const old = relay(token, unchanged);
  REQUIRE(old.guest == "");
  SECTION("an answer that is played again") {
    auto const met = relay(token, [&](int i, bytes said) { return i == 1 ? old.said[1] : said; });
    REQUIRE(met.host);
    CHECK(met.host->find("refused peer: does not hold") == 0);
    CHECK(met.guest != "");
  }
  SECTION("a host that is played again") {
    auto const met = relay(token, [&](int i, bytes said) {
      return i == 1 ? said : old.said[static_cast<std::size_t>(i)];
    });
    REQUIRE(met.guest);
    CHECK(met.guest != "");
    CHECK(met.host != "");
  }
  SECTION("a proof that is played again, behind a hello that is not") {
    auto const met = relay(token, [&](int i, bytes said) { return i == 2 ? old.said[2] : said; });
    REQUIRE(met.guest);
    CHECK(met.guest->find("refused peer: does not hold") == 0);
  }
}

TEST_CASE("a guest's own signature does not serve as the host's", "[asio][handshake]") {
  auto const met =
      relay(run_token::from_text(secret), [answer = bytes()](int i, bytes said) mutable {
        if (i == 1) answer = said;
        if (i == 2) said.assign(answer.end() - 32, answer.end());
        return said;
      });
  REQUIRE(met.guest);
  CHECK(met.guest->find("refused peer: does not hold") == 0);
}

TEST_CASE("a host's challenge sent back to another host opens nothing", "[asio][handshake]") {
  // Two hosts of one run; the guest between them knows no token and plays one against the other.
  auto const token = run_token::from_text(secret);
  net::io_context io;
  socket_pair first(io);
  socket_pair second(io);
  ending first_end;
  ending second_end;
  start_admit(io, first.accepting, token, first_end);
  start_admit(io, second.accepting, token, second_end);
  raw_end to_first(first.connecting, io);
  raw_end to_second(second.connecting, io);
  auto const one = to_first.read(hello_size);
  auto const two = to_second.read(hello_size);
  CHECK(one != two);
  auto const answer_with = [](bytes const& challenge_of_other) {
    bytes answer(challenge_of_other.begin(), challenge_of_other.begin() + 8);
    answer.push_back(std::byte{1});
    answer.insert(answer.end(), challenge_of_other.begin() + 8, challenge_of_other.end());
    answer.insert(answer.end(), challenge_of_other.begin() + 8, challenge_of_other.end());
    return answer;
  };
  to_first.write(answer_with(two));
  to_second.write(answer_with(one));
  // What a host sends to one that it refuses is no signature.
  CHECK(to_first.read(proof_size) == bytes(proof_size));
  CHECK(to_second.read(proof_size) == bytes(proof_size));
  finish(io);
  REQUIRE(first_end);
  REQUIRE(second_end);
  CHECK(first_end->find("refused peer: ") == 0);
  CHECK(second_end->find("refused peer: ") == 0);
}

TEST_CASE("another version is named on both sides", "[asio][handshake]") {
  auto const token = run_token::from_text(secret);
  auto const met = relay(token, [](int i, bytes said) {
    if (i == 0) said[4] = std::byte{7};
    return said;
  });
  REQUIRE(met.guest);
  CHECK(
      met.guest ==
      "refused peer: speaks version 7 of the handshake, and this process 1; build all ranks with "
      "the same zbpp");

  net::io_context io;
  socket_pair pair(io);
  ending host;
  start_admit(io, pair.accepting, token, host);
  raw_end guest(pair.connecting, io);
  bytes answer = to_bytes("zbpp");
  answer.resize(8);
  answer[5] = std::byte{1};
  guest.write(answer);
  finish(io);
  CHECK(
      host ==
      "refused peer: speaks version 256 of the handshake, and this process 1; build all ranks with "
      "the same zbpp");
}

TEST_CASE("a guest that meets another version tells its own", "[asio][handshake]") {
  auto const met = relay(run_token::from_text(secret), [](int i, bytes said) {
    if (i == 0) said[4] = std::byte{7};
    return said;
  });
  auto expected = to_bytes("zbpp");
  expected.resize(8);
  expected[4] = std::byte{1};
  CHECK(met.said[1] == expected);
}

TEST_CASE("who speaks something else is told apart from a rank", "[asio][handshake]") {
  auto const token = run_token::from_text(secret);
  net::io_context io;
  socket_pair pair(io);
  ending host;
  start_admit(io, pair.accepting, token, host);
  raw_end guest(pair.connecting, io);
  guest.write(to_bytes("GET / HTTP/1.1\r\n\r\n"));
  finish(io);
  CHECK(
      host ==
      "refused peer: does not speak as a rank of zbpp; check that host and port are those of rank "
      "0");

  socket_pair other(io);
  ending guest_end;
  start_introduce(io, other.connecting, token, link_purpose::control, guest_end);
  raw_end server(other.accepting, io);
  server.write(to_bytes("220 messages.example.org ESMTP, whom do you want to write to?"));
  finish(io);
  REQUIRE(guest_end);
  CHECK(guest_end->find("refused peer: does not speak as a rank of zbpp;") == 0);
}

TEST_CASE("a purpose that nobody knows is refused although it is signed", "[asio][handshake]") {
  auto const token = run_token::from_text(secret);
  auto const met = meet(token, token, static_cast<link_purpose>(3));
  REQUIRE(met.host);
  CHECK(
      met.host ==
      "refused peer: connects for purpose 3; this version knows 1 (control) and 2 (data)");
}

TEST_CASE("random bytes open nothing", "[asio][handshake]") {
  auto const token = run_token::from_text(secret);
  for (int trial = 0; trial < 50; ++trial) {
    ZBPP_SEEDED(random, 5000 + trial);
    net::io_context io;
    socket_pair pair(io);
    ending host;
    start_admit(io, pair.accepting, token, host);
    raw_end guest(pair.connecting, io);
    bytes noise(static_cast<std::size_t>(random.integer(0, 300)));
    for (auto& b : noise) b = static_cast<std::byte>(random.integer(0, 255));
    if (random.chance(0.5)) {  // a good beginning
      auto const begin = to_bytes(std::string("zbpp\1\0\0\0", 8));
      std::ranges::copy(
          std::span(begin).first(std::min(begin.size(), noise.size())), noise.begin());
    }
    guest.write(noise);
    guest.close();
    finish(io);
    REQUIRE(host);
    CHECK(host != "");
  }
}

}  // namespace test_asio_token
