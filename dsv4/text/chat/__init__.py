"""Conversations: what clients send, and the prompt that DeepSeek-V4 was trained on."""
