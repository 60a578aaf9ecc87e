"""What we add to vLLM's worker; imported in the engine's process, as vLLM's `worker_extension_cls`."""

from __future__ import annotations

from typing import Any

RESERVED = -1
"""Stands for an adapter that is none; vLLM's own ids are positive."""


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

    def reserve_base_slot(self) -> None:
        """Keeps the last slot of adapters empty for good. To be called before an adapter is loaded.

        vLLM's CPU kernels take the last slot for a row that has no adapter, so that the base model answers with
        somebody's adapter as soon as all slots are taken.
        """
        manager = self.model_runner.lora_manager._adapter_manager
        manager._active_adapters[RESERVED] = None
        manager._active_adapters.pin(RESERVED)
        last = len(manager.lora_index_to_id) - 1
        manager.lora_index_to_id[last] = RESERVED
        for module in manager.modules.values():
            module.reset_lora(last)
