"""What the behavioural tests share: machines, scripted scenes, and the books that must balance."""
