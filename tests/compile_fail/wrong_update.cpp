// expect: the update of a stage is its optimizer step: void update(zbpp::pass_context)
// A stage whose optimizer step would never run.
#include <zbpp/runtime/stage.hpp>

struct careless {
  zbpp::flow operator()(zbpp::microbatch) {
    co_await zbpp::F([] {});
  }
#if defined(ZBPP_EXPECT_OK)
  void update(zbpp::pass_context) {}
#else
  void update() {}
#endif
};

int main() {
  careless stage;
  zbpp::stage_ref const reference(stage);
  static_cast<void>(reference);
}
