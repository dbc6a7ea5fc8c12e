"""Reading a recorded profile: which scope of the model its operations belong to."""
