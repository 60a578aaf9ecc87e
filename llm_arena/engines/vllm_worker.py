"""What we add to vLLM's worker; imported in the engine's process, as vLLM's `worker_extension_cls`."""

from __future__ import annotations

from typing import Any


class PolicyWorker:
    """Methods that the engine calls through `collective_rpc`."""

    model_runner: Any  # vLLM's own worker class brings it

    def load_policy(self, directory: str) -> None:
        """Takes the weights of a model folder in place of those that are served.

        With tied embeddings the output head has no weights of its own in the folder. vLLM's CPU backend keeps a packed
        copy of the head's weights, which a reload alone leaves as it was, silently. So the head is packed again.

        Args:
            directory: a safetensors model folder with the tensors of the model that is served.
        """
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        self.model_runner.reload_weights(weights_path=directory)
        for module in self.model_runner.get_model().modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
