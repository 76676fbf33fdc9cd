"""Every rule of the judgement, by small histories made by hand and by recordings."""
