"""The one engine that tries settings in a running loop: diagnosis and sweep both drive it."""
