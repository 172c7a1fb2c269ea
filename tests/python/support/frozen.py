"""What the process has imported so far is left out of garbage collections. Forks then share its memory, which a collection would
copy."""
import gc

gc.freeze()
