"""Who is who: certificates, keys and the authority of each organisation."""
