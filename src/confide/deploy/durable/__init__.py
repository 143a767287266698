"""What must outlive a crash: a server's books and the client's record."""
