"""The local web page of `rfwp play`: watch a model write and read its fast weights, token by token."""
