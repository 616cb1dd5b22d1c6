// expect: a stage's module gives an at::Tensor, zbpp::torch::tensors, or a std::tuple
#include <zbpp/torch/module_stage.hpp>

#include <tuple>

int main() {
  auto const forward = [](at::Tensor const& x) {
#if defined(ZBPP_EXPECT_OK)
    return std::tuple(x, std::tuple(x, x));
#else
    return std::tuple(x, 3);
#endif
  };
  zbpp::torch::module_stage<> const stage(forward);
}
