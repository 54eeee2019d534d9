"""Other people's trainers: adapters that let them practise a curriculum session."""
