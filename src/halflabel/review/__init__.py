"""The review page: a person answers questions about images, on this machine, and the answers become label rows."""
