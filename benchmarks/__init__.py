"""Speed, side by side with what people use today and with what the machine allows, in one run."""
