// expect: a flow takes its microbatch by value
// A stage whose flow would keep a reference to a microbatch that is gone.
#include <zbpp/runtime/stage.hpp>

#if defined(ZBPP_EXPECT_OK)
using parameter = zbpp::microbatch;
#else
using parameter = zbpp::microbatch const&;
#endif

zbpp::flow run(parameter mb) {
  auto in = co_await mb.recv_activation();
  co_await zbpp::F([] {});
}

int main() { return 0; }
