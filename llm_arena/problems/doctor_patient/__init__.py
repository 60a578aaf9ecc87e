"""doctor-patient-v0: conditions, cases, and how what is said is checked."""
