"""What the behavioural tests share: machines, the scripted scene, and the books that must balance."""
